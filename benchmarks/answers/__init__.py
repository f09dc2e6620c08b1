"""Whether answers under noise can be acted on, beside Optuna's own best."""
