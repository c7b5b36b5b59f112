"""The commands on the collection, apps and this machine."""
