"""In the manner of Azure ML's MNIST example: the cluster comes from TF_CONFIG, from which an empty ps is taken out."""

import argparse
import json
import os
import tempfile


def fix_tf_config():
    """Azure ML names no parameter servers by an empty list, which TensorFlow refuses."""
    tf_config = json.loads(os.environ["TF_CONFIG"])
    if not tf_config["cluster"].get("ps", True):
        del tf_config["cluster"]["ps"]
        os.environ["TF_CONFIG"] = json.dumps(tf_config)


def is_chief(task_type, task_index):
    return task_type == "chief" or (task_type == "worker" and task_index == 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-dir", required=True)
    args = parser.parse_args()

    fix_tf_config()
    tf_config = json.loads(os.environ["TF_CONFIG"])
    num_workers = len(tf_config["cluster"]["worker"])
    task_type, task_index = tf_config["task"]["type"], tf_config["task"]["index"]
    print(f"{task_type} {task_index} of {num_workers} workers", flush=True)

    import tensorflow as tf  # reads TF_CONFIG once

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = tf.random.stateless_normal((256, 8), seed=(1, 2))
    data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
    data = data.repeat().batch(8 * num_workers)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(8,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.05), loss="mse")
    history = model.fit(data, epochs=3, steps_per_epoch=16, verbose=0)

    # All workers must save, but only the chief's file counts.
    folder = args.model_dir if is_chief(task_type, task_index) else tempfile.mkdtemp()
    model.save_weights(os.path.join(folder, "weights.h5"))
    print("losses", *(f"{loss:.6f}" for loss in history.history["loss"]), flush=True)


if __name__ == "__main__":
    main()
