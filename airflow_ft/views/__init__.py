"""What a person sees of a chain outside its task: read from Airflow's database, shown as table, text or JSON.

Used by the command line and by the plugin. ``records`` is the one module that touches Airflow's ORM, whose tables
change between minor versions. Sentences come from ``core.story``.
"""
