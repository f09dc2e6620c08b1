"""Where the bytes are: in this process, or in files that the processes of one machine map."""
