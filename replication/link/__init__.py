"""How clusters talk to each other: messages, the two ends, and their gRPC form.

Guarantees: a message is an answer, a typed refusal, or an unknown outcome that may be repeated. Payloads are not
copied. The messages are those of ``proto/walship.proto``. Begin at ``base.py``; ``wire.py`` has their bytes.
"""

import os

# Before gRPC is imported, which only this package does: with its own handlers of fork, one of fifty processes that are
# started beside calls aborts between fork and exec. PySpark starts Java that way.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
