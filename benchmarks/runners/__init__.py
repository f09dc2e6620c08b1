"""What a trial costs on a cluster, beside a bare job there, and how busy the slots are kept."""
