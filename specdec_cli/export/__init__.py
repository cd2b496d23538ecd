"""The same pair for other engines: command lines and configuration files with the settings found best here.

Imports: drafters.
Called by: commands.
"""
