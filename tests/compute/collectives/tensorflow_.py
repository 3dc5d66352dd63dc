import os

from part import say, show_environment

show_environment()
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def add() -> tf.Tensor:
    def each() -> tf.Tensor:
        mine = tf.constant(float(os.environ["RANK"]) + 1.0)
        return tf.distribute.get_replica_context().all_reduce("sum", mine)

    return strategy.run(each)


say(float(strategy.experimental_local_results(add())[0]))
