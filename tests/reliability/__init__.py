"""What must not happen, tried many times: killed runs and writers, damaged files, odd numbers."""
