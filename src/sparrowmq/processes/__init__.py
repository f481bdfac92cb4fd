"""Processes of a drill or a demo: started, followed by their logbooks, ended in every case."""
