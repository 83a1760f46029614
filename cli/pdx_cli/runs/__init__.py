"""What a `pdx up` leaves on this machine for other processes: its record, its logs, its process groups.

Imports nothing of the CLI but `errors`.
"""
