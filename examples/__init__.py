"""Programs that use Jetstream the way its users would."""
