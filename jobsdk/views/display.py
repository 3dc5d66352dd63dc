"""What `jobsdk.notebook.views` gives: how objects of the layers below look in a notebook."""

from jobsdk.views.cards import of_explanation as of_explanation
from jobsdk.views.cards import of_job as of_job
from jobsdk.views.charts import of_metrics as of_metrics
from jobsdk.views.live import of_run as of_run
from jobsdk.views.live import show as show
