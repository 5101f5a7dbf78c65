"""The doctor: tries each link of the way from this machine to a coordinator. Puts nothing right by itself."""
