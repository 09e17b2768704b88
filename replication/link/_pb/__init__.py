"""Made from proto/walship.proto by deploy/gen_proto.py; do not edit."""
