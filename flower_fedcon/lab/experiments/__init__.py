"""The laboratory: experiments, tuning, claims, figures."""
