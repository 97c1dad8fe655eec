"""The front end of a service: HTTP on one side, workers with the model on the other."""
