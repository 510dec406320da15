"""What is recorded of steps in every pass, whoever makes the steps."""
