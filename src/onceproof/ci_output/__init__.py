"""Results for CI servers, ``--ci``: a summary and annotations for GitHub, a code quality report for GitLab."""
