"""What a request asks for, parsed once at the edge into frozen values."""
