"""Where the bytes are: in this process, or in files that many processes of one host map."""
