"""What tunegym itself costs per trial, beside Optuna, a bare subprocess and a bare import."""
