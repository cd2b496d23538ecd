"""Everything that draws; the only place that knows rich and prompt_toolkit. Views draw what they are given
and decide nothing.

Imports: decode, models.
Called by: generation, bench, commands, app.
"""
