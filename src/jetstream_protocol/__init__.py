"""What server and client share: the batch format, data-plane frames, subjects, errors, protobuf."""
