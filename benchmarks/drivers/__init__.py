"""Programs that do one side's work when told to, each run by that side's own interpreter."""
