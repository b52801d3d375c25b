"""GPUs, TPUs and whatever else XLA reaches, through JAX's public interface. JAX loads when such a device is first used."""
