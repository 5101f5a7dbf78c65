"""The version both ends name. setup.cfg has the same; a test compares them."""

VERSION = "0.1.0"
