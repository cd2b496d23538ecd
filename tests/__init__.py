"""The suite, in the rooms of the package; stand-ins that several rooms use lie here."""
