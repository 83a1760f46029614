"""Child processes that are recorded on disk, and commands of the system. Imports only `errors`."""
