"""An AMQP 0-9-1 broker as a service of the run: Qpid, or RabbitMQ if it is installed."""
