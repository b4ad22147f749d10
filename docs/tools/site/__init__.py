"""What MkDocs is given beside the pages: where links lead, and what is read off the source."""
