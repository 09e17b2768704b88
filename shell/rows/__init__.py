"""Rows between tables and a terminal or files: read, written, imported, printed."""

import pyarrow as pa

from replication.tables.pandas_later import load_pandas_later

pa.enable_signal_handlers(False)  # its handler would replace the shell's on Ctrl-C, and still wait for a pipe
load_pandas_later()
