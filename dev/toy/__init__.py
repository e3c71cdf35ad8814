"""How the embedded toy model came about: its pictures, its training, and a classifier that reads what it draws."""
