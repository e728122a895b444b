"""A webhook as an output: requests that leave the job, to a receiver of the harness, and that no transaction takes back."""
