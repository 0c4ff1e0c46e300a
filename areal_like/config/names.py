"""Short names that users expect; each stands for the full path of one key."""

ALIASES: dict[str, str] = {
    "actor.lr": "actor.optimizer.lr",
    "critic.lr": "critic.optimizer.lr",
    "model.lr": "model.optimizer.lr",
    "max_head_offpolicyness": "rollout.max_head_offpolicyness",
    "temperature": "gconfig.temperature",
    "n_samples": "gconfig.n_samples",
    "max_new_tokens": "gconfig.max_new_tokens",
    "batch_size": "train_dataset.batch_size",
    "total_steps": "total_train_steps",
    "fileroot": "cluster.fileroot",
}
