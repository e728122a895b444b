"""The smallest part of a history that still shows a finding."""
