"""The laboratory's commands: experiments, what they leave, and studies."""
