"""The pages of the service: the experiment as it stands, and the slates that were shown."""
