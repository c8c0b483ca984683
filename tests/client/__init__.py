"""What programs of other people see: the client, submits in their transactions, the relay."""
