"""Rented GPUs of modal.com."""
