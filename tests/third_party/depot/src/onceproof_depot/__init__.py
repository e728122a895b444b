"""Extensions of onceproof for the jobs of a parcel depot: one file per item."""
