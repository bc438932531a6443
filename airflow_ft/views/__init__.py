"""What a person sees of a chain outside its task: read from Airflow's database, shown as table, text or JSON.

Used by the command line and by the plugin. Only ``records`` (one chain), ``listing`` (many) and ``debts`` touch
Airflow's ORM, whose tables change between minor versions; the others are pure. Sentences come from ``core.story`` and
``answers``.
"""
