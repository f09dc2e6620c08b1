"""What the ``optuna`` agent finds and costs, beside Optuna alone with the same sampler."""
