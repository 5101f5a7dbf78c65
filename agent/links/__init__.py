"""Links: ways to reach a coordinator. A link opens channels, each a byte stream to one `coordinator connect`."""
