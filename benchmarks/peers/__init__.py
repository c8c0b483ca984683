"""duly beside other task queues, doing the same work on the same machine in the same run."""
