"""The same pair for other engines: command lines and configuration files with the settings found best here.

Imports: errors, drafters.
Called by: commands.
"""
