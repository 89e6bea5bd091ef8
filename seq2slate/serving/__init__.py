"""From a trained model to a service: export, runtime, log, experiment."""
