"""Bad calls of every public function: tables of cases, one line a case, and their judge."""
