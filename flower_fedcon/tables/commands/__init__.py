"""The commands on tables and on models of tables."""
