"""The commands of `jetstream`. Each module is named after its command, or after a noun that has
several commands.
"""
