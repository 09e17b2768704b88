"""WALs of one writer: their files, their order on the disk, who holds them, and what is done when their writer died."""
